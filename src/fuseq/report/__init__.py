"""Tables for terminals; text from models is escaped."""
