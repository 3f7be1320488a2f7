"""What decides: each function takes what a getter found, what was expected if anything, and options; it returns 0 to 1.

They run in helper processes with limits, and may raise whatever they like: that counts as 0, except `UnsupportedCheck`.
"""
