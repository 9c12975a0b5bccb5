"""An inspection as one page that people can send round: what is collected in inspect's pass, and how it is shown."""
