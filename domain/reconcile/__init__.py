"""What a status should say, worked out from the present: level, not edge."""
