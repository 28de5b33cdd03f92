"""A program as a drawing, in SVG written without any library."""
