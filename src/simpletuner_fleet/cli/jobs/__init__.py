"""`simpletuner jobs …`"""
