"""Callbacks for trainers, for people who cannot use the command line. Each module needs its
package, which is an extra."""
