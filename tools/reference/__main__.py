"""Write all reference pages."""

from tools.reference.pages import FOLDER, made

for name, text in made().items():
    (FOLDER / name).write_text(text)
