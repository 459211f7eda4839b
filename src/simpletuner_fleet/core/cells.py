"""Makes the cells of an exported table safe for spreadsheets."""

FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")


def harmless_cell(cell: str) -> str:
    """Returns the cell so that a spreadsheet does not read a name that somebody chose as a formula."""
    return f"'{cell}" if cell.startswith(FORMULA_BEGINS) else cell
