# The same creates as demo.sh, by xl.
exec bash /lab/demo.bash xl
