"""What varies: parameters, points, expressions. Pure."""
