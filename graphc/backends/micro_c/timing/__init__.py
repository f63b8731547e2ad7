"""How long bundles take on a microcontroller: instructions counted in QEMU, and their cycles."""
