"""More processes than one: a source's episodes, divided into tasks that workers run, on this machine or on a Ray cluster."""
