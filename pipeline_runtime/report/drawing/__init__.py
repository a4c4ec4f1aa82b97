"""Drawing for reports: curves and areas as SVG, boxes and colours for a terminal."""
