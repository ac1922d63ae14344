"""What a study's folder says of it, while it runs and after: on a screen, as a page, as JSON, as CSV, to MLflow."""
