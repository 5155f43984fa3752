"""The graph as a page: `layers`, `place` and `layout` say where things stand, `state` how they are, `document` and `page` make it one HTML file."""
