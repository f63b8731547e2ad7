"""CPUs, through LLVM: this machine's, and others (docs/cross.md)."""
