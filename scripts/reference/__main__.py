"""Write all pages."""

from scripts.reference import PAGES

for path, page in PAGES.items():
    path.write_text(page())
