"""The study's folder and its journal."""
