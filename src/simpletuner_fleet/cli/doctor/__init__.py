"""`simpletuner doctor`: finds out what is wrong and changes nothing."""
