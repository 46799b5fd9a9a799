"""Faces for loops, meshes and workflow stores that exist elsewhere: their names, our guarantees."""
