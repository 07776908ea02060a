"""How is a file of questions answered? Each line once, in runs that may end and go on."""
