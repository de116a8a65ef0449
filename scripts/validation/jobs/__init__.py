"""Small trainings as users write them: scripts of their own, of which nothing knows of dlemu."""
