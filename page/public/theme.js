// The theme that was chosen last, before anything is drawn.
(function () {
  try {
    var theme = localStorage.getItem('xylem.theme');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  } catch (_) {
    // Without storage, the system's theme.
  }
})();
