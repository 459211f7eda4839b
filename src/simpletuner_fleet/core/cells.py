"""Cells of tables that spreadsheets read."""

FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")


def harmless_cell(cell: str) -> str:
    """A name that somebody chose must not be a formula in a spreadsheet."""
    return f"'{cell}" if cell.startswith(FORMULA_BEGINS) else cell
