"""C text of kernels, shared by the targets whose languages are C: C99, microcontrollers, CUDA."""
