"""Shows the study in a folder, while it runs and after: on a screen, as a page, as JSON, as CSV, in MLflow."""
