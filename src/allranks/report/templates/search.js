"use strict";
(function () {
  var box = document.getElementById("search");
  var said = document.getElementById("found");
  var logs = Array.prototype.slice.call(document.querySelectorAll("details.log"));
  var opened = logs.map(function (log) { return log.open; });
  function filter() {
    var wanted = box.value.toLowerCase();
    var count = 0;
    logs.forEach(function (log, at) {
      var here = 0;
      Array.prototype.forEach.call(log.querySelectorAll(".l"), function (line) {
        var fits = wanted === "" || line.textContent.toLowerCase().indexOf(wanted) >= 0;
        line.hidden = !fits;
        if (fits) { here += 1; }
      });
      Array.prototype.forEach.call(log.querySelectorAll(".gap"), function (gap) { gap.hidden = wanted !== ""; });
      log.hidden = wanted !== "" && here === 0;
      log.open = wanted === "" ? opened[at] : here > 0;
      count += here;
    });
    said.textContent = wanted === "" ? "" : count + (count === 1 ? " line" : " lines");
  }
  box.addEventListener("input", filter);
  document.getElementById("searching").hidden = false;
}());
