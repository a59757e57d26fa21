// Before anything is drawn: the colours that the person chose last, else those of the system.
const theme = localStorage.getItem("theme");
if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
