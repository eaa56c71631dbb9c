"""Write the pages of docs/reference that are made from tables of the source: `make pages`."""

from tests.reference.all_pages import GENERATED_FOLDERS, REFERENCE, generated


def write_pages() -> None:
    """Write every page, and remove those of what is there no more."""
    pages = generated()
    for folder in GENERATED_FOLDERS:
        (REFERENCE / folder).mkdir(exist_ok=True)
        for path in (REFERENCE / folder).iterdir():
            if f"{folder}/{path.name}" not in pages:
                path.unlink()
    for name, text in pages.items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
