"""The guide: Markdown in docs/guide, one folder for each language, built into the pages that the server shows."""
