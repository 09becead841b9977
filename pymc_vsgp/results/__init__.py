"""What one does with draws."""
