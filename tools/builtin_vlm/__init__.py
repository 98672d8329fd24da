"""What trains the built-in vision-language model; not part of the installed package."""
