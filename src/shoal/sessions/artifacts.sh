# Runs in a short-lived sandbox after the agent has ended and its sandbox is empty: writes the declared files out, and changes nothing.
# stdout, for each path given: a line TOKEN STATE BYTES, and so many bytes. Given: TOKEN MOST MOST_ALL; the paths as words.
set -u
left=$MOST_ALL
say() { printf '%s %s %s\n' "$TOKEN" "$1" "$2"; }

# No part of the way may be a link: what lies behind one is not the file that was declared.
state_of() {
  way=. rest=$1/
  while [ -n "$rest" ]; do
    above=$way way=$way/${rest%%/*} rest=${rest#*/}
    if [ -L "$way" ]; then echo link; return; fi
    if [ ! -e "$way" ]; then { [ -x "$above" ] && echo missing; } || echo shut; return; fi
    if [ -n "$rest" ] && [ ! -d "$way" ]; then echo blocked; return; fi
  done
  if [ -f "$way" ]; then echo file; elif [ -d "$way" ]; then echo folder; else echo special; fi
}

for path; do
  state=$(state_of "$path") size=0
  if [ "$state" = file ]; then size=$(wc -c < "./$path") || { state=shut size=0; }; fi
  if [ "$size" -gt "$MOST" ]; then say large "$size"; continue; fi
  if [ "$size" -gt "$left" ]; then say crowded "$size"; continue; fi
  say "$state" "$size"
  [ "$state" != file ] || head -c "$size" "./$path" || exit 1
  left=$((left - size))
done
