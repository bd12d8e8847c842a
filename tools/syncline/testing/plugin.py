"""What pytest loads in every run of everybody who has Syncline installed: one name, no import.

The fixtures are in ``_fixtures``, which imports pytest and nothing else; what a fixture needs is
imported when a test asks for it. ``-p no:syncline`` leaves all of it out.
"""

pytest_plugins = ("syncline.testing._fixtures",)
