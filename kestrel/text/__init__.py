"""Text between tokens and people: streaming decode, stop strings, chat templates."""
