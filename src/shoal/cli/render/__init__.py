"""The only place with words for people, split by what the words are about."""
