"""Rows become a trie, and the trie forests under a budget."""
