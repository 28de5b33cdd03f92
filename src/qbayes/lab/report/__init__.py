"""Programs for the eye: drawings as SVG, written without any library."""
