"""The paper's mathematics and the loop that trains contexts; knows tensors, not files."""
