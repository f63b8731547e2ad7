"""placeholder"""
def crate(path, image, name, platform): return {}
def npm_package(path, image, name): return {}
