"""This machine's CPU, through LLVM."""
