"""Build folders from which programs benchmark nothing and compile nothing, without a GPU."""
