import pytest

import support


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The configuration of a tiny model on data that it can learn."""
    folder = tmp_path_factory.mktemp("tiny")
    return support.config(folder, support.learnable_data(folder / "data"))
