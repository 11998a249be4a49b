"""Every place where nanodoc holds on to torch or to a library: wrapped functions, the frames that
these wrappers add, the functions as they were before the script changed them, and private names."""
