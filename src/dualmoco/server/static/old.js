// Runs only in browsers that do not know ES modules.
document.getElementById("old-browser").removeAttribute("hidden");
