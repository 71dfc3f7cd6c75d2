import pytest

from kilolayer.train import RECIPES, Recipe, translation
from kilolayer.train.recipes import load_recipe


@pytest.mark.parametrize("build", RECIPES, ids=lambda build: build.__name__)
def test_every_recipe_is_found_by_its_name_and_can_be_changed(build):
    recipe = load_recipe(build.__name__, {"data": "a.txt", "lr": 0.5, "layers": 3})
    assert (recipe.task, recipe.lr, recipe.decoder_layers) == (build.__name__, 0.5, 3)
    assert recipe.encoder_layers == (3 if build.__name__ == "translation" else 0)


def test_a_users_recipe(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from kilolayer.train import language\n"
        "def recipe():\n    return language(data='a.txt', width=64)\n"
        "def other():\n    return 3\n"
    )
    assert load_recipe(f"{path}:recipe", {"steps": 300}) == load_recipe(
        "language", {"data": "a.txt", "width": 64, "steps": 300}
    )
    with pytest.raises(ValueError, match=r"must return a kilolayer.train.Recipe, got int"):
        load_recipe(f"{path}:other", {})
    with pytest.raises(ValueError, match="has no function 'recip'; did you mean 'recipe'"):
        load_recipe(f"{path}:recip", {})


def test_what_is_missing_is_said():
    with pytest.raises(ValueError, match="unknown recipe 'langauge'; did you mean 'language'"):
        load_recipe("langauge", {})
    with pytest.raises(ValueError, match="'language' needs data"):
        load_recipe("language", {})


@pytest.mark.parametrize(
    "build", [translation, lambda **changes: load_recipe("translation", {"data": "a.tsv"} | changes)]
)
def test_translation_has_no_characters(build):
    with pytest.raises(ValueError, match="translation has sub-words, got tokens='characters'"):
        build(tokens="characters")


def test_one_stack_can_differ_from_the_layers_of_all():
    recipe = load_recipe("translation", {"data": "a.tsv", "layers": 4, "decoder_layers": 2})
    assert isinstance(recipe, Recipe)
    assert (recipe.encoder_layers, recipe.decoder_layers) == (4, 2)
