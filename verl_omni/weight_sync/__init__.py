"""What both ends of a weight update share."""
