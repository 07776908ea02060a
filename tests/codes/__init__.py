"""The codecs: one suite for all of them."""
