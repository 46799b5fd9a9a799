"""Tools of graphs that never fire twice."""
