"""The pictures and sounds that a trainer makes on its way."""
