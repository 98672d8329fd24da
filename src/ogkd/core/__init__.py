"""The paper's mathematics and the loop that trains contexts: tensors in, tensors out."""
