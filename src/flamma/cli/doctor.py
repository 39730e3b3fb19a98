import argparse
def register(commands): pass
